// Runs an ONNX file with OpenCV's DNN: what its outputs are goes to a file, one after the other.
//
// usage: opencv_dnn MODEL INPUT OUTPUT BATCH CHANNELS HEIGHT WIDTH OUTPUT_NAME...
//
// INPUT: 32-bit floats. Prints the shape of each output. Status 2: OpenCV cannot run the file.

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <opencv2/core/utils/logger.hpp>
#include <opencv2/dnn.hpp>

static cv::Mat read_input(const char *path, const std::vector<int> &shape)
{
    cv::Mat input(shape, CV_32F);
    std::ifstream file(path, std::ios::binary);
    auto bytes = static_cast<std::streamsize>(input.total() * sizeof(float));
    if (!file.read(reinterpret_cast<char *>(input.data), bytes)) exit(1);
    return input;
}

static void write_outputs(const char *path, const std::vector<cv::Mat> &outputs)
{
    std::ofstream file(path, std::ios::binary);
    for (const cv::Mat &output : outputs) {
        for (int k = 0; k < output.dims; k++)
            printf("%d ", output.size[k]);
        printf("\n");
        auto bytes = static_cast<std::streamsize>(output.total() * sizeof(float));
        file.write(reinterpret_cast<const char *>(output.data), bytes);
    }
    if (!file.flush()) exit(1);
}

int main(int argc, char **argv)
{
    cv::utils::logging::setLogLevel(cv::utils::logging::LOG_LEVEL_SILENT);
    std::vector<int> shape;
    for (int i = 4; i < 8; i++)
        shape.push_back(atoi(argv[i]));
    std::vector<cv::String> names(argv + 8, argv + argc);
    std::vector<cv::Mat> outputs;
    try {
        cv::dnn::Net net = cv::dnn::readNetFromONNX(argv[1]);
        net.setInput(read_input(argv[2], shape));
        net.forward(outputs, names);
    } catch (const cv::Exception &e) {
        fprintf(stderr, "%s\n", e.what());
        return 2;
    }
    write_outputs(argv[3], outputs);
    return 0;
}
